"""The clients, blocking and asyncio. Needs grpcio, protobuf and numpy, nothing heavier."""
