#!/usr/bin/env bash
# Prints the path of `prometheus` or `promtool`: the one on the PATH, or the one in Debian's package, unpacked under .cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
tool=${1:?prometheus or promtool}
cache=$PWD/.cache/prometheus

if command -v "$tool"; then
  exit
fi
if [ ! -x "$cache/usr/bin/$tool" ]; then
  command -v apt-get >/dev/null || {
    echo "$tool is not there: install Prometheus, or run this where apt-get is" >&2
    exit 1
  }
  mkdir -p .cache
  # A folder of its own until it is whole: two of these may run at the same time.
  fresh=$(mktemp -d .cache/prometheus.XXXXXX)
  trap 'rm -rf "$fresh"' EXIT
  # Unpacked and not installed: the package would start a Prometheus server.
  if [ "$(id -u)" = 0 ]; then apt-get update -qq >&2; fi
  (cd "$fresh" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download prometheus >&2)
  dpkg-deb --fsys-tarfile "$fresh"/prometheus_*.deb | tar -xC "$fresh" ./usr/bin/prometheus ./usr/bin/promtool
  rm "$fresh"/prometheus_*.deb
  mv -T "$fresh" "$cache" 2>/dev/null || [ -x "$cache/usr/bin/$tool" ]
fi
echo "$cache/usr/bin/$tool"
