#!/bin/sh
# Passwords of a compose project, drawn once, into a folder that all its processes may read and nobody else: the store's (with its
# configuration, and as a URL) and Grafana's.
set -eu
cd "$1"
umask 027
drawn() { python -c 'import secrets; print(secrets.token_urlsafe(32))'; }
if [ ! -s redis_url ]; then
  password=$(drawn)
  cat >valkey.conf <<EOF
dir /data
port 6379
requirepass $password
save ""
appendonly no
# what would be evicted is somebody's conversation
maxmemory-policy noeviction
EOF
  # last: it says that the rest is there
  printf 'redis://:%s@valkey:6379/0' "$password" >redis_url.new
  mv redis_url.new redis_url
fi
[ -s grafana_password ] || drawn >grafana_password
