#!/bin/sh
# In an image build, on any Debian with Python: packages that every image needs, those named, and the user that all processes are.
set -eu
include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
for package in "$@"; do
  # a Python that is no Debian package brings its own
  if [ "$package" = python3-dev ] && [ -f "$include/Python.h" ]; then continue; fi
  wanted="${wanted:-} $package"
done
apt-get update
# shellcheck disable=SC2086  # a list
apt-get install -y --no-install-recommends ca-certificates tini ${wanted:-}
rm -rf /var/lib/apt/lists/*
groupadd --gid 10001 parley
useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin parley
install -d -o 10001 -g 10001 /models /checkpoint /mps /run/parley
