"""Where each series gathers: a family's buffers by label values, in the order of its labels."""

from gatefuse.metrics import families
from gatefuse.metrics.buffers import buffered_counter, buffered_histogram

requests = buffered_counter(families.requests)
durations = buffered_histogram(families.request_duration, families.DURATION_BUCKETS_S)
inferences = buffered_histogram(families.inference_duration, families.DURATION_BUCKETS_S)
rows = buffered_counter(families.rows)
request_rows = buffered_histogram(families.request_rows, families.ROW_BUCKETS)
queue_waits = buffered_histogram(families.queue_wait, families.SHORT_BUCKETS_S)
batch_rows = buffered_histogram(families.batch_rows, families.ROW_BUCKETS)
batch_requests = buffered_histogram(families.batch_requests, families.REQUEST_BUCKETS)
batches = buffered_counter(families.batches)
padding = buffered_counter(families.batch_padding_rows)
calls = buffered_histogram(families.replica_call, families.SHORT_BUCKETS_S)
overhead = buffered_histogram(families.replica_overhead, families.SHORT_BUCKETS_S)
busy = buffered_counter(families.device_busy)
device_batches = buffered_histogram(families.device_batch, families.DEVICE_BUCKETS_S)
launches = buffered_counter(families.kernel_launches)
replays = buffered_counter(families.graph_replays)
dram = buffered_counter(families.dram_bytes)
flops = buffered_counter(families.flops)
hops = buffered_counter(families.transfer_bytes)
shed = buffered_counter(families.requests_shed)
invalid = buffered_counter(families.requests_invalid)
cancelled = buffered_counter(families.cancelled)
