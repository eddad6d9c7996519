"""Round trip with transformers (needs torch and transformers, so it is not part of make test):
  1. a folder written by snug train loads in transformers, tokens are equal and logits agree to 1e-5;
  2. a folder written by transformers' save_pretrained loads in snug, and logits agree to 1e-5.

    python3 tests/reference/round_trip.py build/bin/snug build/demo/trained build/demo/validation.csv
"""
import csv
import json
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

SNUG, FOLDER, DATA = sys.argv[1:4]


def texts():
    with open(DATA, newline="") as f:
        return [row["text"] for row in csv.DictReader(f)][:200]


def snug_scores(folder):
    out = subprocess.run([SNUG, "predict", "--model", folder, "--input", DATA, "--json"], check=True, capture_output=True).stdout
    return torch.tensor([list(p["scores"].values()) for p in json.loads(out)["predictions"]], dtype=torch.float64)


def reference_scores(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(t, return_tensors="pt", truncation=True, max_length=model.config.max_position_embeddings)).logits
                            for t in texts()])
    return logits.softmax(-1), tokenizer


def compare(name, folder):
    theirs, tokenizer = reference_scores(folder)
    ours = snug_scores(folder)[:len(theirs)]
    # Probabilities fix logits up to a constant a row; logs compare small ones too.
    worst = (ours.log() - theirs.log()).abs().max().item()
    print(f"{name}: {len(theirs)} texts, largest difference of log-probabilities {worst:.2e}")
    assert worst <= 1e-5
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for t in texts():
            f.write(json.dumps(dict(text=t)) + "\n")
        f.flush()
        out = subprocess.run([SNUG, "tokenize", "--model", folder, "--input", f.name], check=True, capture_output=True).stdout
    assert [json.loads(line)["ids"] for line in out.splitlines()] == [tokenizer(t)["input_ids"] for t in texts()]


def main():
    compare("snug's folder in transformers", FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(3)
        config = BertConfig.from_pretrained(FOLDER, initializer_range=0.1)
        BertForSequenceClassification(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(FOLDER).save_pretrained(folder)
        compare("transformers' folder in snug", folder)


if __name__ == "__main__":
    main()
