"""The network: two convolutions with max pooling, two fully connected layers, 153,441 parameters.

Letters: B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

import torch
import torch.nn.functional as F
from torch import nn

from horovod_study.strain.material import CHANNELS, POINTS, TARGETS

WIDTHS = (15, 38, 197)
INPUT_SCALINGS = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "fixed": ((0.0, 0.0, 0.0), (0.25, 120.0, 1.0)),
    "standard": ((0.0833, 45.6, 0.950), (0.0585, 23.6, 1.0)),
}
"""What is subtracted from strain, stress (MPa) and flag, and what they are then divided by. `fixed`: the largest strain
and the highest plateau of generated curves, so that all is between 0 and 1; `standard`: their means and standard
deviations, padding included, and the mean of the flag. Constants, never taken from the data at hand, so that a network
means the same on every data set."""


class StressCNN(nn.Module):
    """Conv 3-15 (5), pool 3, Conv 15-38 (5), pool 3, FC 760-197, FC 197-2; (B, 3, 201) -> (B, 2).

    The one-dimensional convolutions are done as two-dimensional ones of height 1 on channels-last input, which is the
    same arithmetic and faster on a CPU (docs/performance.md); `memory_format="contiguous"` does them as they are
    written in the textbook. The parameters stay contiguous: Horovod accepts no other layout, and it costs nothing.
    ReLU comes after the pooling: max pooling and ReLU commute, and there is a third as much to do.

    `input_scaling` is a key of INPUT_SCALINGS; "none" takes strain as a ratio and stress in MPa, as the original did.
    """

    _factor: torch.Tensor
    _shift: torch.Tensor

    def __init__(
        self,
        *,
        widths: tuple[int, int, int] = WIDTHS,
        input_scaling: str = "none",
        memory_format: str = "channels-last",
    ) -> None:
        super().__init__()
        first, second, hidden = widths
        pooled = (((POINTS - 4) // 3) - 4) // 3  # two valid convolutions of 5 points, each followed by pooling by 3
        self.conv1 = nn.Conv2d(CHANNELS, first, (1, 5))
        self.conv2 = nn.Conv2d(first, second, (1, 5))
        self.fc1 = nn.Linear(second * pooled, hidden)
        self.fc2 = nn.Linear(hidden, TARGETS)
        self._scaled = input_scaling != "none"
        self._channels_last = memory_format == "channels-last"
        offset, scale = (torch.tensor(each) for each in INPUT_SCALINGS[input_scaling])
        # Not part of the state: constants that follow from `input_scaling`.
        self.register_buffer("_factor", (1 / scale)[:, None], persistent=False)
        self.register_buffer("_shift", (-offset / scale)[:, None], persistent=False)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of `flat`, a number for each parameter, that belong to the tensors, in their shapes."""
        parameters = list(self.parameters())
        parts = torch.split(flat, [each.numel() for each in parameters])
        return [part.view_as(each) for part, each in zip(parts, parameters, strict=True)]

    def forward(self, curves: torch.Tensor) -> torch.Tensor:
        """Return normalised targets (B, P) for curves (B, C, L)."""
        if self._scaled:
            curves = torch.addcmul(self._shift, curves, self._factor)
        if self._channels_last:
            x = curves[:, :, None, :].contiguous(memory_format=torch.channels_last)
            x = F.relu(F.max_pool2d(self.conv1(x), (1, 3)))
            x = F.relu(F.max_pool2d(self.conv2(x), (1, 3)))
        else:
            x = F.relu(F.max_pool1d(F.conv1d(curves, self.conv1.weight[:, :, 0], self.conv1.bias), 3))
            x = F.relu(F.max_pool1d(F.conv1d(x, self.conv2.weight[:, :, 0], self.conv2.bias), 3))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)  # type: ignore[no-any-return]
