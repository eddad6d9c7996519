"""Makes tests/golden/bert-tiny: a tiny BERT classifier with random weights, and what PyTorch and transformers say about it in
fp64: logits, the gradient of every parameter for the first batch, and the losses of ten AdamW steps without dropout.

    python3 tests/golden/make_bert_golden.py        (needs torch 2.13 and transformers 5; snug's tests do not)
"""
import json
import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "bert-tiny")
STEPS, EXAMPLES, LABELS, VOCAB, POSITIONS = 10, 7, 3, 97, 40
ADAM = dict(lr=2e-3, betas=(0.9, 0.999), eps=1e-8)
WEIGHT_DECAY, CLIP = 0.01, 1.0


def make_model():
    config = BertConfig(vocab_size=VOCAB, hidden_size=36, num_hidden_layers=3, num_attention_heads=4,
                        intermediate_size=68, max_position_embeddings=POSITIONS, num_labels=LABELS,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.15,
                        attn_implementation="eager")
    model = BertForSequenceClassification(config)
    with torch.no_grad():  # no zeros and ones: biases and norms must matter
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
    return model


def make_batches():
    batches = []
    for _ in range(STEPS):
        rows = []
        for i in range(EXAMPLES):
            n = [1, 2, 5, 17, 33, 40, 8][i]
            split = random.randrange(1, n + 1)
            rows.append(dict(ids=[random.randrange(VOCAB) for _ in range(n)],
                             type_ids=[0] * split + [1] * (n - split), label=random.randrange(LABELS)))
        batches.append(rows)
    return batches


def loss_and_logits(model, rows):
    logits = [model(input_ids=torch.tensor([r["ids"]]), token_type_ids=torch.tensor([r["type_ids"]])).logits
              for r in rows]  # one at a time: no padding anywhere
    logits = torch.cat(logits)
    return torch.nn.functional.cross_entropy(logits, torch.tensor([r["label"] for r in rows])), logits


def main():
    torch.manual_seed(1)
    random.seed(1)
    model = make_model().eval()
    os.makedirs(OUT, exist_ok=True)
    model.save_pretrained(OUT)
    model = model.double()
    batches = make_batches()

    loss, logits = loss_and_logits(model, batches[0])
    loss.backward()
    expected = {"logits": logits.detach()}
    expected.update({"gradient." + k: p.grad.clone() for k, p in model.named_parameters()})
    save_file({k: v.float().contiguous() for k, v in expected.items()}, os.path.join(OUT, "expected.safetensors"))

    plain = [p for k, p in model.named_parameters() if k.endswith("bias") or "LayerNorm" in k]
    decayed = [p for k, p in model.named_parameters() if not (k.endswith("bias") or "LayerNorm" in k)]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=plain, weight_decay=0.0)],
                                  **ADAM)
    losses, norms = [], []
    for rows in batches:
        optimizer.zero_grad()
        loss, _ = loss_and_logits(model, rows)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    with open(os.path.join(OUT, "steps.json"), "w") as f:
        json.dump(dict(learning_rate=ADAM["lr"], beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=WEIGHT_DECAY,
                       max_grad_norm=CLIP, losses=losses, gradient_norms=norms, batches=batches), f)
    print(losses, norms)


if __name__ == "__main__":
    main()
