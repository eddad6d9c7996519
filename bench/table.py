"""Medians of the rounds in a bench.jsonl as a Markdown table, with the ratio to the peer of the same case."""
import json
import statistics
import sys

cases = {}
for line in open(sys.argv[1]):
    row = json.loads(line)
    cases.setdefault(row["case"], {}).setdefault(row["program"].split()[0], []).append(row)
print("\n| training step (BERT-base, GPT-2 124M), fp32 | tokens | snug ms | snug tokens/s | PyTorch ms | times faster |")
print("|---|---|---|---|---|---|")
for case, programs in cases.items():
    ms = {name: statistics.median(row["ms"] for row in rows) for name, rows in programs.items()}
    tokens = programs["snug"][0]["tokens"]
    peer = f"{ms['torch']:.0f} | {ms['torch'] / ms['snug']:.2f}" if "torch" in ms else "– | –"
    print(f"| {case}, {programs['snug'][0]['threads']} threads | {tokens} | {ms['snug']:.0f} | {tokens / ms['snug'] * 1e3:.0f} | {peer} |")
