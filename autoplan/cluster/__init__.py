"""What a user's cluster is: nodes of devices, the networks between them, and the memory that each device offers.

``spec`` holds the vocabulary, ``parts`` what it is made of, ``text`` and ``files`` the ways to write it down.
"""

from autoplan.cluster.parts import NodeGroup, OuterLevel
from autoplan.cluster.spec import ClusterSpec

__all__ = ["ClusterSpec", "NodeGroup", "OuterLevel"]
