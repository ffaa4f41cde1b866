"""Under which name weights have a parameter: the model's, or another that transformers' from_pretrained takes too."""

from collections.abc import Iterable, Iterator

LEGACY = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))  # of TensorFlow's BERT


class WeightNames:
    """Which of the names that weights have is a parameter's.

    Weights of a model's inner part lack the name under which the model holds it ("layers.0…" for "model.layers.0…"),
    and those of a model around it have one more ("bert.encoder…" for "encoder…"); whichever finds the most of the
    weights is taken for all. One that two names would find counts once: "rope.pos_embed" isn't "pos_embed".

    present  the weights' names
    wanted   the model's
    """

    def __init__(self, present: Iterable[str], wanted: Iterable[str]) -> None:
        self.present, names = frozenset(present), frozenset(wanted)
        inner = {name.split(".", 1)[0] for name in names if "." in name}
        outer = {n.split(".", 1)[0] for n in self.present if "." in n and n.split(".", 1)[1] in names}
        choices = [("", ""), *((p, "") for p in sorted(inner)), *(("", p) for p in sorted(outer))]
        self.lacking, self.further = max(choices, key=lambda choice: len({*self.under(choice, names)} - {None}))

    def find(self, name: str) -> str | None:
        """The weights' name of the model's parameter ``name``; None where they lack it."""
        return next(self.under((self.lacking, self.further), (name,)))

    def under(self, choice: tuple[str, str], names: Iterable[str]) -> Iterator[str | None]:
        """What is found when a first part of the names is left out, or put before them."""
        lacking, further = choice
        for name in names:
            moved = f"{further}.{name}" if further else name.removeprefix(f"{lacking}.")
            yield next((spelling for spelling in spellings(moved) if spelling in self.present), None)


def spellings(name: str) -> tuple[str, ...]:
    return (name, *(name.replace(new, old) for new, old in LEGACY if new in name))
