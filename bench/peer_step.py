"""The peer of step_bench: the same training step in PyTorch + transformers, texts padded to the longest of the batch.
    THREADS=2 python3 bench/peer_step.py 8x128 sst2 gpt2:1x512"""
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

WARM_UP, TIMED = 1, 5
SST2 = [8, 26, 10, 38, 16, 22, 47, 13, 30, 19, 61, 11, 24, 7, 34, 28, 15, 42, 20, 9, 33, 18, 25, 52, 12, 29, 21, 37, 14, 23, 17, 36]


def lengths_of(name):
    if name == "sst2":
        return SST2
    n, length = map(int, name.split("x"))
    return [length] * n


def bert(lengths):
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, n in enumerate(lengths):
        ids[row, :n] = torch.randint(1000, 30000, (n,))
        mask[row, :n] = 1
    labels = torch.randint(0, 2, (len(lengths),))
    inputs = dict(input_ids=ids, labels=labels)
    if longest * len(lengths) != sum(lengths):
        inputs["attention_mask"] = mask
    return BertForSequenceClassification(BertConfig(num_labels=2)), inputs


def gpt2(lengths):
    ids = torch.randint(1000, 30000, (len(lengths), lengths[0]))
    return GPT2LMHeadModel(GPT2Config()), dict(input_ids=ids, labels=ids)


def run(name):
    torch.manual_seed(0)
    model_name, _, shape = name.rpartition(":")
    lengths = lengths_of(shape)
    model, inputs = (gpt2 if model_name == "gpt2" else bert)(lengths)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    times = []
    for _ in range(WARM_UP + TIMED):
        start = time.perf_counter()
        model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    median = sorted(times[WARM_UP:])[TIMED // 2]
    print(json.dumps(dict(program="torch " + torch.__version__, case=name, threads=torch.get_num_threads(), tokens=sum(lengths),
                          ms=round(median * 1e3, 1), tokens_per_second=round(sum(lengths) / median, 1))), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("THREADS", os.cpu_count())))
    for case in sys.argv[1:]:
        run(case)
