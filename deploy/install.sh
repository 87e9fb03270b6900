#!/bin/sh
# In an image build: an environment in /venv with what /lock.txt pins, nothing else, each file by its digest; through the authority of the
# secret `ca`, if there is one.
set -eu
if [ -f /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi
python3 -m venv /venv
exec /venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: --requirement /lock.txt
