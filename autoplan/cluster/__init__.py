"""A user's cluster: nodes of devices, the networks between them, and each device's memory.

`ClusterSpec` is made from a text such as "8x8 h100-sxm", a mapping, or a .toml file. It reads the profiles and fabrics
that it names once and keeps their figures, so a loaded plan is priced as it was made.

Modules, each importing only those before it:

    bandwidth   wider or narrower links for a what-if
    parts       groups of nodes, and levels of the network
    known       the figures that a cluster keeps
    toml_files  mappings and .toml files
    loose       texts such as "h200x8"
    one_line    a cluster in one line
    spec        `ClusterSpec`
    interval    the interval about a prediction, from the profile's accuracy
    catalog     the devices and fabrics of the package
"""

from autoplan.cluster.bandwidth import read_factors
from autoplan.cluster.catalog import catalog_text, figures_text
from autoplan.cluster.known import Known
from autoplan.cluster.parts import NodeGroup, OuterLevel
from autoplan.cluster.spec import ClusterSpec

__all__ = ["ClusterSpec", "Known", "NodeGroup", "OuterLevel", "catalog_text", "figures_text", "read_factors"]
