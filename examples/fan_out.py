"""Many callers at once: each sends its rows through all layers of a model, and all share one stream."""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

from gatefuse import aio


async def caller(stream: aio.Stream, model: str, layers: list[int], x: np.ndarray) -> list[float]:
    """Sends ``x`` [M, H] through the layers; returns for each how many rows its batch had in all."""
    batch_rows: list[float] = []
    for layer in layers:
        result = await stream.infer(model, x, layer=layer, datatype="BF16")
        x = x + result.output
        batch_rows.append(result.cost.batch_rows)
    return batch_rows


async def main() -> None:
    """Prints what the server made of the callers' requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--model", default="llama-ffn")
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--rows", type=int, default=2, help="rows of each caller")
    options = parser.parse_args()

    async with aio.Client(options.url) as client, client.stream() as stream:
        metadata = await client.model_metadata(options.model)
        layers = [int(layer) for layer in metadata.properties["layers"].split(",")]
        hidden = metadata.inputs[0].shape[-1]
        rows = np.random.default_rng(0).standard_normal((options.callers, options.rows, hidden))
        batches = await asyncio.gather(
            *(caller(stream, options.model, layers, x) for x in rows.astype(np.float32))
        )
    print(f"{options.callers} callers, {len(layers)} layers, {options.rows} rows each")
    print(f"rows in the batch that a request rode in: {np.mean(batches):.1f} on average")


if __name__ == "__main__":
    asyncio.run(main())
