"""The process that clients talk to: gRPC, validation, queues, batches."""
