"""The peers of step_bench on a GPU: a plain PyTorch loop, the same compiled, and Hugging Face's Trainer, each in bf16 with
dropout and fused AdamW on random weights. One JSON line per program; COMPILE=0 leaves the compiled one out.
    python3 bench/peer_gpu.py 8x128 | 32x128 | sst2 | 32x512 | large:16x512 | gpt2-medium:8x1024
    python3 bench/peer_gpu.py sst2-data train.tsv      the Trainer on a real file, dynamic padding, 4 loader workers
    python3 bench/peer_gpu.py generate FOLDER          transformers' generate, greedy, batches of 1 and 32
    python3 bench/peer_gpu.py make-gpt2-medium FOLDER  weights and configuration of a fresh GPT-2 355M, for snug generate"""
import json
import os
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import torch
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback,
                          TrainingArguments)

from peer_step import lengths_of

WARM_UP, TIMED = 10, 30


def model_of(name):
    if name == "gpt2-medium":
        return GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16))
    large = name == "large"
    sizes = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096) if large else {}
    return BertForSequenceClassification(BertConfig(num_labels=2, **sizes))


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
    return dict(input_ids=ids, attention_mask=mask, labels=torch.tensor([label for _, label in rows]))


def collate_texts(rows):
    ids = torch.tensor([ids for ids, _ in rows])
    return dict(input_ids=ids, labels=ids)


def rows_of(lengths, copies):
    return [(torch.randint(1000, 30000, (n,)).tolist(), n % 2) for _ in range(copies) for n in lengths]


def loop(name, lengths, compiled):
    model = model_of(name).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    forward = torch.compile(model) if compiled else model
    make = collate_texts if name.startswith("gpt2") else collate
    batch = {k: v.cuda() for k, v in make(rows_of(lengths, 1)).items()}
    if len(set(lengths)) == 1:
        batch.pop("attention_mask", None)
    times = []
    for _ in range(WARM_UP + TIMED):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[WARM_UP:])[TIMED // 2] * 1e3


class Clock(TrainerCallback):
    def __init__(self):
        self.times = []

    def on_step_end(self, args, state, control, **kwargs):
        torch.cuda.synchronize()
        self.times.append(time.perf_counter())


def trainer(name, rows, batch_size, steps):
    clock = Clock()
    model, make = model_of(name), collate_texts if name.startswith("gpt2") else collate
    arguments = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=batch_size, max_steps=steps, bf16=True, report_to=[],
                                  save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_num_workers=4)
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=make, callbacks=[clock]).train()
    return clock.times


def say(program, **fields):
    print(json.dumps(dict(program=program, **fields)), flush=True)


def on_file(path):
    """The vocabulary does not matter for speed: words are hashed, about one token a word and a few pieces more."""
    rows = []
    with open(path) as f:
        next(f)
        for line in f:
            text, label = line.rstrip("\n").rsplit("\t", 1)
            rows.append(([101] + [1000 + hash(word) % 29000 for word in text.split()] + [102], int(label)))
    times = trainer("base", rows, 32, 400)
    say("trainer", case="sst2-data", examples_per_second=round(32 * (len(times) - 51) / (times[-1] - times[50]), 1))


def generate(folder):
    model = GPT2LMHeadModel.from_pretrained(folder).to("cuda", torch.bfloat16).eval()
    for batch in 1, 32:
        prompt = torch.randint(100, 5000, (batch, 16)).cuda()
        for tokens in 16, 256:  # the first warms up
            torch.cuda.synchronize()
            start = time.perf_counter()
            model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        say("transformers", case=f"generate {batch}", tokens_per_second=round(batch * 256 / seconds, 1))


def main():
    torch.manual_seed(0)
    case = sys.argv[1]
    if case == "sst2-data":
        return on_file(sys.argv[2])
    if case == "make-gpt2-medium":
        return model_of("gpt2-medium").save_pretrained(sys.argv[2])
    if case == "generate":
        return generate(sys.argv[2])
    name, _, shape = case.rpartition(":")
    lengths = lengths_of(shape)
    name = name or "base"
    say("loop", case=case, ms=round(loop(name, lengths, False), 2))
    times = trainer(name, rows_of(lengths, WARM_UP + TIMED + 2), len(lengths), WARM_UP + TIMED)
    gaps = sorted(b - a for a, b in zip(times[WARM_UP:], times[WARM_UP + 1:]))
    say("trainer", case=case, ms=round(gaps[len(gaps) // 2] * 1e3, 2))
    if os.environ.get("COMPILE", "1") == "1":  # takes a minute a case
        say("compile", case=case, ms=round(loop(name, lengths, True), 2))


if __name__ == "__main__":
    main()
