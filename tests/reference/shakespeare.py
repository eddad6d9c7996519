"""The same small GPT-2, made by snug init, trained by snug and by PyTorch + transformers on the same blocks of a text, with the same
steps, batches, rates and dropout (not the same order): their validation losses side by side, and what the model writes.
Needs torch and transformers, so it is not part of make test.

    python3 tests/reference/shakespeare.py build/bin/snug TEXT.txt [steps] [block] [batch]"""
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SNUG, TEXT = sys.argv[1:3]
STEPS, BLOCK, BATCH = (int(x) for x in (sys.argv[3:] + ["200", "128", "16"][len(sys.argv) - 3:]))
RATE = 1e-3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def snug(*args):
    done = subprocess.run([SNUG, *map(str, args)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"snug {' '.join(map(str, args))} ended with {done.returncode}")
    return done.stdout


def reference(model_folder, text):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder).train().to(DEVICE)
    ids = tokenizer(text)["input_ids"] + [model.config.eos_token_id]
    blocks = [ids[i:i + BLOCK] for i in range(0, len(ids), BLOCK)]
    held_out = -(-len(blocks) * 5 // 100)
    train = torch.tensor([b for b in blocks[:-held_out] if len(b) == BLOCK]).to(DEVICE)
    decayed = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(decayed, lambda step: 1 - step / STEPS)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1))
    start = time.time()
    for step in range(STEPS):
        rows = [int(order[(step * BATCH + i) % len(train)]) for i in range(BATCH)]
        batch = train[rows]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        decayed.step()
        schedule.step()
        decayed.zero_grad()
    seconds = time.time() - start
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for block in blocks[-held_out:]:
            if len(block) < 2:
                continue
            logits = model(torch.tensor([block], device=DEVICE)).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(block[1:], device=DEVICE), reduction="sum").item()
            count += len(block) - 1
    return total / count, seconds


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        model, out = os.path.join(folder, "model"), os.path.join(folder, "out")
        snug("init", "--model-type", "gpt2", "--train", TEXT, "--vocab-size", 4000, "--hidden-size", 384, "--num-hidden-layers", 6,
             "--num-attention-heads", 6, "--max-position-embeddings", 256, "--output-dir", model)
        start = time.time()
        report = json.loads(snug("train", "--model", model, "--train", TEXT, "--block-size", BLOCK, "--batch-size", BATCH, "--max-steps", STEPS,
                                 "--learning-rate", RATE, "--eval-strategy", "steps", "--eval-steps", STEPS, "--save-strategy", "no",
                                 "--precision", "fp32", "--output-dir", out, "--json"))
        seconds = time.time() - start
        print(f"snug: validation loss {report['eval_loss']:.4f} in {seconds:.0f} s, {report['tokens_per_second']:.0f} tokens/s, peak "
              f"{report['measured_peak_bytes'] / 2**20:.0f} MiB (planned {report['predicted_peak_bytes'] / 2**20:.0f})", flush=True)
        print(snug("generate", "--model", out, "--prompt", "ROMEO:\n", "--max-new-tokens", 150, "--temperature", 0.8), flush=True)
        with open(TEXT) as f:
            theirs, their_seconds = reference(model, f.read())
        print(f"PyTorch on {DEVICE}: validation loss {theirs:.4f} in {their_seconds:.0f} s; snug's is {report['eval_loss'] / theirs - 1:+.2%}")
        assert report["eval_loss"] <= 1.02 * theirs


if __name__ == "__main__":
    main()
