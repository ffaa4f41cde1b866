"""What a user's cluster is: nodes of devices, the networks between them, and the memory that each device offers.

``spec`` holds the vocabulary, ``parts`` what it is made of, ``text`` and ``files`` the ways to write it down, ``known``
the figures of all that it names, ``bandwidth`` widens links for a what-if, ``catalog`` tells which devices and fabrics
come with the package.
"""

from autoplan.cluster.bandwidth import read_factors
from autoplan.cluster.catalog import catalog_text, figures_text
from autoplan.cluster.known import Known
from autoplan.cluster.parts import NodeGroup, OuterLevel
from autoplan.cluster.spec import ClusterSpec

__all__ = ["ClusterSpec", "Known", "NodeGroup", "OuterLevel", "catalog_text", "figures_text", "read_factors"]
