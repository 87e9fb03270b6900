#!/bin/sh
# Certificates for development: for clients of the gateway (TLS), and between gateways and services (mTLS).
# Not for production: the authorities' keys lie beside the certificates, without a passphrase.
set -eu

if [ $# -lt 1 ]; then
  echo "usage: $0 FOLDER [HOST...]   (HOST: further names or addresses of the gateway, besides localhost)" >&2
  exit 2
fi
folder=$1
shift
days=${DAYS:-90}
command -v openssl >/dev/null || { echo "$0: openssl is missing" >&2; exit 1; }
umask 077
mkdir -p "$folder"
cd "$folder"

# authority NAME TITLE
authority() {
  [ -s "$1.pem" ] && [ -s "$1.key" ] && openssl x509 -checkend 86400 -noout -in "$1.pem" >/dev/null && return
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days "$days" -subj "/CN=$2" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$1.key" -out "$1.pem" 2>/dev/null
}

# certificate NAME AUTHORITY NAMES USES
certificate() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$1.key.new" -out "$1.csr" 2>/dev/null
  printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=%s\nsubjectAltName=%s\n' "$4" "$3" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -days "$days" -extfile "$1.ext" -out "$1.pem.new" 2>/dev/null
  mv "$1.key.new" "$1.key"
  mv "$1.pem.new" "$1.pem"
  chmod 644 "$1.pem"
  rm -f "$1.csr" "$1.ext"
}

hosts=DNS:localhost,IP:127.0.0.1,IP:0:0:0:0:0:0:0:1
for host in "$@"; do
  case $host in
    *:*) hosts=$hosts,IP:$host ;;
    *[!0-9.]*) hosts=$hosts,DNS:$host ;;
    *) hosts=$hosts,IP:$host ;;
  esac
done

# Two authorities: whoever has the key that faces the internet must not pass for a gateway.
authority http-ca "Parley development: clients"
authority ca "Parley development: processes"
certificate http http-ca "$hosts" serverAuth
certificate gateway ca DNS:gateway.parley clientAuth
for service in vad thinker talker vocoder; do
  certificate "$service" ca "DNS:stage.parley,DNS:$service.parley" serverAuth
done
rm -f ./*.srl
chmod 644 ca.pem http-ca.pem

here=$(pwd)
cat <<EOF
the gateway, towards clients (they trust http-ca.pem):
  PARLEY_HTTP_TLS_CERTIFICATE=$here/http.pem PARLEY_HTTP_TLS_KEY=$here/http.key
the gateway, towards services:
  PARLEY_TLS_CERTIFICATE=$here/gateway.pem PARLEY_TLS_KEY=$here/gateway.key PARLEY_TLS_CA=$here/ca.pem PARLEY_TLS_SERVER_NAME=stage.parley
each service (vad, thinker, talker, vocoder), with its own files:
  PARLEY_TLS_CERTIFICATE=$here/vad.pem PARLEY_TLS_KEY=$here/vad.key PARLEY_TLS_CA=$here/ca.pem
EOF
