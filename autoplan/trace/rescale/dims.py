"""The dims of every value of a model in classes, and the size that each class takes.

Dims that an operator says are the same (a factor of its rule that stands alone in both) are one class. A class has the
size it was traced with, and the size it is to have once that is known.
"""

from dataclasses import dataclass, field

from autoplan.errors import RescaleError

Key = tuple[int, str, int]
"""(index of the block, -1 for the constants; name of the value; dim). A factor that no dim has alone is
"node:factor", dim 0."""

REMEDY = "Trace the model again at that size, with autoplan.parallelize"


@dataclass
class Dims:
    """Classes of dims. ``asked`` is what the user wants, "batch=32", for errors."""

    asked: str
    parent: dict[Key, Key] = field(default_factory=dict)
    old: dict[Key, int] = field(default_factory=dict)
    sizes: dict[Key, int] = field(default_factory=dict)  # new, by the class' root
    named: dict[Key, str] = field(default_factory=dict)  # what gave a class its new size

    def add(self, key: Key, size: int) -> Key:
        """A dim with the size it was traced with; one that is known already keeps it."""
        self.parent.setdefault(key, key)
        known = self.old.setdefault(key, size)
        assert known == size, f"{key} is {known} and {size}"
        return key

    def find(self, key: Key) -> Key:
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key

    def unite(self, one: Key, other: Key) -> bool:
        """Makes two dims one class; whether they weren't."""
        a, b = self.find(one), self.find(other)
        if a == b:
            return False
        if self.old[a] != self.old[b]:
            raise self.error(one, f"it was traced with {self.old[a]}, and with {self.old[b]} where it is {say(other)}")
        self.parent[b] = a
        if b in self.sizes:
            size, why = self.sizes.pop(b), self.named.pop(b)
            self.give(a, size, why)
        return True

    def size(self, key: Key) -> int | None:
        """The new size, None where it isn't known yet."""
        return self.sizes.get(self.find(key))

    def known(self, key: Key) -> int:
        size = self.size(key)
        assert size is not None, f"{key} has no size"
        return size

    def was(self, key: Key) -> int:
        return self.old[self.find(key)]

    def changed(self, key: Key) -> bool:
        return self.size(key) not in (None, self.was(key))

    def give(self, key: Key, size: int, why: str) -> bool:
        """Gives a class its new size; whether that is news. RescaleError where it has another already."""
        root = self.find(key)
        if root not in self.sizes:
            if size < 1:
                raise self.error(key, f"it would have {size} elements")
            self.sizes[root], self.named[root] = size, why
            return True
        if self.sizes[root] != size:
            raise self.error(key, f"it would be {self.sizes[root]} by {self.named[root]}, and {size} by {why}")
        return False

    def error(self, key: Key, cause: str) -> RescaleError:
        return RescaleError(self.asked, f"{say(key)}, {self.old[key]} as traced, can't follow: {cause}", REMEDY)


def say(key: Key) -> str:
    _, name, dim = key
    return f"dim {dim} of {name}" if ":" not in name.split("[")[0] else f"a part of {name.split(':')[0]}"
