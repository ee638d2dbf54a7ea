#!/usr/bin/env bash
# compute-sanitizer's memcheck over our kernels at edges: odd sizes, views, tails.
#
#   PYTHON=python3 tests/kernels/gpu/memcheck.sh [pytest's arguments]
#
# torch's allocator hands out pieces of large blocks, in which an access past a tensor's end is no
# error; without it each tensor is an allocation of its own. Left out: captures (test_graphs.py,
# test_buckets.py), which must not allocate; the profiler, which wants the same interface as the
# sanitizer; full sizes and matrices of more than 2^31 elements (test_huge.py), for time: an offset
# that wraps shows in the answers.
set -euo pipefail
cd "$(dirname "$0")/../../.."

tests=tests/kernels/gpu
wanted='not full_size and not one_launch and not nothing and not between_library'
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
exec compute-sanitizer --tool memcheck --error-exitcode 1 --target-processes all \
  "${PYTHON:-.venv/bin/python}" -m pytest -m gpu "$@" \
  "$tests/test_accuracy.py" "$tests/test_bad_values.py" "$tests/test_gate.py" "$tests/test_rows.py" \
  "$tests/test_views.py" \
  -k "$wanted"
