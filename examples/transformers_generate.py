"""Generates with a Llama from transformers, first alone, then with every MLP on a Gatefuse server."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

import torch
from transformers import LlamaForCausalLM

import gatefuse
from gatefuse.remote import replace_mlps


def main() -> int:
    """Prints both continuations; returns 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--checkpoint", default="tiny-llama", help="a folder, or a model's name")
    parser.add_argument("--model", default="llama-ffn", help="the served model with its MLPs")
    parser.add_argument("--prompt-ids", default="1,17,42,99", help="tokens, separated by commas")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--stream", action="store_true", help="one stream for all calls")
    options = parser.parse_args()

    model = LlamaForCausalLM.from_pretrained(options.checkpoint, dtype=torch.bfloat16)
    prompt = torch.tensor([[int(token) for token in options.prompt_ids.split(",")]])
    alone = generate(model, prompt, options.tokens)
    with ExitStack() as stack:
        client = stack.enter_context(gatefuse.Client(options.url))
        caller = stack.enter_context(client.stream()) if options.stream else client
        layers = replace_mlps(model, caller, options.model)
        remote = generate(model, prompt, options.tokens)
    print(f"alone:  {alone}\nremote: {remote}")
    print(f"{len(layers)} MLPs on {options.url}: {'the same' if alone == remote else 'DIFFERENT'}")
    return int(alone != remote)


@torch.inference_mode()
def generate(model: LlamaForCausalLM, prompt: torch.Tensor, tokens: int) -> list[int]:
    """Returns the greedy continuation of ``prompt`` [1, S]."""
    sequence = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False
    )
    continuation: list[int] = sequence[0, prompt.shape[1] :].tolist()
    return continuation


if __name__ == "__main__":
    sys.exit(main())
