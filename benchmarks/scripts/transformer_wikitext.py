"""Trains a small GPT-2 of transformers on the words of WikiText-2, in one process.

python transformer_wikitext.py --data DATA
"""

from collections import Counter
from pathlib import Path

import pace
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

LENGTH, VOCABULARY = 64, 8000


def main():
    asked = pace.parser(__doc__, batch_size=8).parse_args()
    torch.manual_seed(0)
    words = (Path(asked.data) / "wikitext-2" / "train.txt").read_text(encoding="utf-8").split()
    numbers = {word: number for number, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1), start=1)}
    tokens = torch.tensor([numbers.get(word, 0) for word in words])
    windows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    loader = DataLoader(windows, asked.batch_size, shuffle=True, drop_last=True)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
        )
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = get_linear_schedule_with_warmup(optimizer, 100, 100_000)
    clock = pace.Pace(asked)
    for _ in range(1000):
        for ids in loader:
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if clock.step(loss):
                return


if __name__ == "__main__":
    main()
