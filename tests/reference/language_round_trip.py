"""Language models and RoBERTa between snug and transformers (needs torch and transformers, so it is not part of make test).
Fresh models are made with snug init, trained a few steps, and compared:
  1. tokens and text: the folder's tokenizer in transformers gives the same ids and the same text back;
  2. GPT-2: snug eval's loss on a text is that of transformers over the same blocks, to 1e-5;
  3. GPT-2: greedy tokens are those of transformers;
  4. RoBERTa: class probabilities agree to 1e-5; a folder that transformers has saved gives the same in snug.

    python3 tests/reference/language_round_trip.py build/bin/snug TEXT.txt"""
import json
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

SNUG, TEXT = sys.argv[1:3]
BLOCK = 64


def snug(*args):
    done = subprocess.run([SNUG, *map(str, args)], capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": FOLDER})
    if done.returncode != 0:
        sys.exit(f"snug {' '.join(map(str, args))}\n{done.stderr}")
    return done.stdout


def check_tokenizer(folder, lines):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    path = os.path.join(FOLDER, "lines.jsonl")
    with open(path, "w") as f:
        f.writelines(json.dumps(dict(text=line)) + "\n" for line in lines)
    ours = [json.loads(line)["ids"] for line in snug("tokenize", "--model", folder, "--input", path).splitlines()]
    theirs = [tokenizer(line)["input_ids"] for line in lines]
    assert ours == theirs
    decoded = [tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) for ids in ours]
    assert decoded == lines
    return tokenizer


def gpt2(text):
    model, out, part = (os.path.join(FOLDER, name) for name in ("gpt2", "gpt2-out", "part.txt"))
    with open(part, "w") as f:
        f.write(text[:60_000])
    snug("init", "--model-type", "gpt2", "--train", part, "--vocab-size", 1500, "--hidden-size", 96, "--num-hidden-layers", 3,
         "--num-attention-heads", 4, "--max-position-embeddings", 256, "--output-dir", model)
    snug("train", "--model", model, "--train", part, "--block-size", BLOCK, "--batch-size", 16, "--max-steps", 60, "--learning-rate", "2e-3",
         "--output-dir", out)
    tokenizer = check_tokenizer(out, [line for line in text.splitlines() if line][:300])
    reference = AutoModelForCausalLM.from_pretrained(out).double().eval()
    ids = tokenizer(text[:60_000])["input_ids"] + [reference.config.eos_token_id]
    total, count = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(ids), BLOCK):
            block = torch.tensor([ids[at:at + BLOCK]])
            if block.shape[1] < 2:
                continue
            logits = reference(block).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(logits, block[0, 1:], reduction="sum").item()
            count += block.shape[1] - 1
    ours = json.loads(snug("eval", "--model", out, "--data", part, "--max-length", BLOCK, "--json"))
    print(f"GPT-2: loss {ours['loss']:.7f}, transformers {total / count:.7f}, {count} tokens")
    assert abs(ours["loss"] / (total / count) - 1) < 1e-5 and ours["predicted_tokens"] == count

    prompt = text[:40]
    written = json.loads(snug("generate", "--model", out, "--prompt", prompt, "--greedy", "--ignore-eos", "--max-new-tokens", 100, "--json"))
    start = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        theirs = reference.float().generate(start, max_new_tokens=100, min_new_tokens=100, do_sample=False, pad_token_id=0)
    same = tokenizer.decode(theirs[0, start.shape[1]:], clean_up_tokenization_spaces=False) == written["texts"][0]["text"]
    print("GPT-2: 100 greedy tokens", "are equal" if same else "differ")
    assert same


def roberta(text):
    model, out, data = (os.path.join(FOLDER, name) for name in ("roberta", "roberta-out", "data.csv"))
    lines = [line.replace('"', "") for line in text.splitlines() if len(line) > 10][:600]
    with open(data, "w") as f:
        f.write("text,label\n")
        f.writelines(f'"{line}",{"long" if len(line) > 40 else "short"}\n' for line in lines)
    snug("init", "--model-type", "roberta", "--train", data, "--vocab-size", 1000, "--hidden-size", 64, "--num-hidden-layers", 2,
         "--num-attention-heads", 4, "--max-position-embeddings", 64, "--output-dir", model)
    snug("train", "--model", model, "--train", data, "--batch-size", 16, "--max-steps", 30, "--learning-rate", "1e-3", "--output-dir", out)
    for folder in out, os.path.join(FOLDER, "again"):
        if folder != out:
            AutoModelForSequenceClassification.from_pretrained(out).save_pretrained(folder)
            AutoTokenizer.from_pretrained(out).save_pretrained(folder)
        tokenizer = check_tokenizer(folder, lines[:100])
        reference = AutoModelForSequenceClassification.from_pretrained(folder).double().eval()
        with torch.no_grad():
            theirs = torch.cat([reference(**tokenizer(line, return_tensors="pt", truncation=True, max_length=64)).logits for line in lines[:100]])
        found = json.loads(snug("predict", "--model", folder, "--input", data, "--json"))["predictions"][:100]
        ours = torch.tensor([list(p["scores"].values()) for p in found], dtype=torch.float64)
        worst = (ours.log() - theirs.log_softmax(-1)).abs().max().item()
        print(f"RoBERTa: largest difference of log-probabilities {worst:.2e}")
        assert worst <= 1e-5


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as FOLDER:
        with open(TEXT) as f:
            contents = f.read()
        gpt2(contents)
        roberta(contents)
