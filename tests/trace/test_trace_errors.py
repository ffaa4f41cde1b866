"""Models that can't be traced, and batches that don't fit: the error names the value, the cause, the remedy."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.errors import InputsError, NoRuleError, TraceError
from autoplan.trace.passes.literals import MOST
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret

X = torch.zeros(4, 8)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        if y.sum() > 0:  # the line that is named
            return y.sum()
        return y.mean()


class DataSized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.fc(x)[x[:, 0] > 0]
        return torch.zeros(int(kept.sum())).sum()


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.fc.weight.clamp_(-1, 1)
        return self.fc(x).sum()


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("kept", torch.zeros(0, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = torch.cat([self.kept, self.fc(x).detach()])
        return self.fc(x).sum()


class Untied(nn.Module):
    """Puts a tensor in the place of a buffer that has another name, too: from then on there are two."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("kept", torch.zeros(8))
        self.register_buffer("also", self.kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = self.kept + self.fc(x).detach().mean(0)
        return (self.fc(x) - self.kept + self.also).sum()


class WrongShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(7, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).sum()  # 8 features meet 7


class Drawn(nn.Module):
    """Multiplied by this many numbers in turn, written down in forward."""

    def __init__(self, stretches: int) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.numbers = [0.5 if at % 2 else 0.25 for at in range(stretches)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.fc(x).mean() * torch.tensor(self.numbers)).sum()


class Sorting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, places = self.fc(x).sort()
        return (values * places).sum()


class Factored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.geqrf(self.fc(x))[0].sum()


@pytest.mark.parametrize("module", [Branching, DataSized])
def test_control_flow_on_values_names_the_line(module: type[nn.Module]) -> None:
    with pytest.raises(TraceError) as caught:
        trace(module(), (X,), training=True)
    assert "depends on a tensor's values" in caught.value.cause
    assert Path(__file__).name in caught.value.value
    if module is Branching:
        assert "if y.sum() > 0" in caught.value.value
        line = int(caught.value.value.split(":")[1])
        assert "the line that is named" in Path(__file__).read_text().splitlines()[line - 1]


def test_a_model_that_does_not_run_names_the_line() -> None:
    with pytest.raises(TraceError, match="8 features meet 7"):
        trace(WrongShape(), (X,), training=True)


def test_a_parameter_that_forward_changes_is_named() -> None:
    with pytest.raises(TraceError, match=r"fc\.weight: forward changes it in place.*keep it in a buffer"):
        trace(Clamped(), (X,), training=True)


def test_a_buffer_keeps_its_shape() -> None:
    with pytest.raises(TraceError, match=r"kept: forward puts torch.float32 of \[4, 8\] in place of this buffer"):
        trace(Growing(), (X,), training=True)


def test_a_buffer_of_two_names_is_put_under_both() -> None:
    with pytest.raises(TraceError, match="kept: forward puts another tensor in its place, while also stays"):
        trace(Untied(), (X,), training=True)


def test_a_changed_buffer_has_one_name() -> None:
    module = nn.Sequential(Averaging(), nn.Linear(8, 8), Averaging())
    module[2].mean = module[0].mean
    with pytest.raises(TraceError, match=r"mean: forward changes it, and it is \d\.mean, too"):
        trace(module, (X,), loss_fn=torch.sum, training=True)


def test_too_many_values_written_in_forward_are_an_error() -> None:
    with pytest.raises(TraceError, match="register it as a buffer"):
        trace(Drawn(MOST + 1), (X,), training=True)


def test_an_operator_with_several_results_is_named() -> None:
    with pytest.raises(NoRuleError, match=r"aten\.geqrf"):
        trace(Factored(), (X,), training=True)


@pytest.mark.parametrize("module", [Drawn(MOST), Drawn(1), Sorting()])
def test_numbers_and_several_results_that_there_are_rules_for(module: nn.Module) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    traced = trace(module, (x,), training=True)
    torch.testing.assert_close(interpret(traced, dict(module.named_parameters()), {"x": x}), module(x))


def test_a_model_without_a_loss_says_what_to_give() -> None:
    with pytest.raises(InputsError, match=r"it returns no loss.*give loss_fn"):
        trace(nn.Linear(8, 8), (X,), training=True)


def test_inputs_that_forward_does_not_take() -> None:
    with pytest.raises(InputsError, match=r"target.*Linear\.forward doesn't take it"):
        trace(nn.Linear(8, 8), (X, X), training=True)
    with pytest.raises(InputsError, match="they hold no tensor"):
        trace(nn.Linear(8, 8), {}, loss_fn=F.mse_loss, training=True)


class Named(nn.Linear):
    def forward(self, input: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(input * mask)


@pytest.mark.parametrize(
    ("model", "batch", "loss_fn", "said"),
    [
        (nn.Linear(8, 8), (X,), F.mse_loss, r"loss_fn=mse_loss:.*'target'.*takes input .*leaves nothing to it\. give"),
        (nn.Linear(8, 8), (X, X), lambda output: output.mean(), "too many positional.*leaves target to it"),
        (nn.Linear(8, 8), (X, X, X), nn.MSELoss(), "loss_fn=MSELoss.*leaves target_0, target_1 to it"),
        (nn.Linear(8, 8), (X, X), nn.MSELoss, r"loss_fn=MSELoss: it is a class.*give MSELoss\(\)"),
        (Named(8, 8), (X, X), F.mse_loss, r"Named\.forward: it needs mask.*give all as a dict: \{'mask': …\}"),
        (Named(8, 8), {"input": X, "target": X}, F.mse_loss, "needs mask, which the example_inputs lack. give it, too"),
    ],
)
def test_a_loss_or_a_forward_of_other_arguments_is_told_before_the_trace(
    model: nn.Module, batch: object, loss_fn: object, said: str
) -> None:
    with pytest.raises(InputsError, match=said):
        trace(model, batch, loss_fn=loss_fn, training=True)  # type: ignore[arg-type]


def test_where_no_line_is_the_users_the_module_or_the_loss_is_named() -> None:
    with pytest.raises(TraceError, match=r"^Linear\(in_features=7, out_features=8, bias=True\): RuntimeError"):
        trace(nn.Sequential(nn.Linear(7, 8)), (X, X), loss_fn=F.mse_loss, training=True)
    with pytest.raises(TraceError, match=r"^loss_fn of float32 \[4, 8\] and float32 \[4\]: .*that loss_fn takes such"):
        trace(nn.Linear(8, 8), (X, torch.zeros(4)), loss_fn=F.cross_entropy, training=True)


class Heard(nn.Linear):
    """One row's sequence, of no dim of rows."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(super().forward(x).log_softmax(-1), labels, torch.tensor(4), torch.tensor(3))


def test_one_row_of_ctc_is_as_torch_has_it() -> None:
    heard, batch = Heard(8, 6), {"x": torch.randn(4, 8), "labels": torch.tensor([1, 2, 3])}
    found = interpret(trace(heard, batch, training=True), dict(heard.named_parameters()), batch)
    torch.testing.assert_close(found, heard(**batch))


class HeardByRecurrence(nn.Module):
    """A recurrent layer sets its own attributes in forward, so that forward is run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.layer(x)[0]).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, labels, torch.full_like(lengths, 5), lengths)


def test_ctc_behind_a_recurrent_layer() -> None:
    heard, batch = HeardByRecurrence(), (torch.randn(4, 5, 8), torch.randint(1, 6, (4, 2)), torch.tensor([1, 2, 2, 1]))
    model = trace(heard, batch, training=True)
    assert sum(node.op == "autoplan.ctc_losses" for block in model.blocks for node in block.nodes) == 1


class Packed(HeardByRecurrence):
    def forward(self, x: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[0].data.sum()


def test_a_packed_sequence_is_told() -> None:
    batch = (torch.randn(4, 5, 8), torch.randint(1, 6, (4, 2)), torch.tensor([1, 2, 2, 1]))
    with pytest.raises(TraceError, match=r"self\.layer\(packed\).*packed sequence.*give the layer the padded rows"):
        trace(Packed(), batch, training=True)


def test_a_module_that_can_not_be_copied() -> None:
    model = nn.Linear(8, 8)
    model.handle = open(__file__)  # type: ignore[assignment]  # noqa: SIM115  a file can't be copied
    with pytest.raises(TypeError):
        copy.deepcopy(model)
    with pytest.raises(TraceError, match="Linear: it can't be copied"):
        trace(model, (X, X), loss_fn=F.mse_loss, training=True)
    model.handle.close()  # type: ignore[operator,union-attr]
