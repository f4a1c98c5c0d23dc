"""A loop that does next to nothing: why_hooks.py TRANSFORMS prints the microseconds of a batch with its step, the least
of its windows of 200.
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose

STEPS = 10_000
WINDOW = 200

transform = Compose([lambda image: image for _ in range(int(sys.argv[1]))])


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        made: torch.Tensor = transform(torch.zeros(4))
        return made


def main() -> None:
    torch.set_num_threads(1)
    network = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    windows, began = [], time.perf_counter()
    for step, batch in enumerate(DataLoader(Samples(), batch_size=1), 1):
        optimizer.zero_grad()
        network(batch).sum().backward()
        optimizer.step()
        if step % WINDOW == 0:
            now = time.perf_counter()
            windows.append((now - began) / WINDOW)
            began = now
    print(f"{1e6 * min(windows):.1f}")


main()
