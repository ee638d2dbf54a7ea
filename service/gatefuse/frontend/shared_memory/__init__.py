"""Memory of clients on the same host, which they register by name and whose rows requests then only point at.

`registry` is what all frontends agree on; `regions` is what one of them has open; `region` reads and writes.
"""

from gatefuse.frontend.shared_memory.cuda import CudaRegion
from gatefuse.frontend.shared_memory.region import RegionSlice, SystemRegion
from gatefuse.frontend.shared_memory.regions import Regions
from gatefuse.frontend.shared_memory.registry import Registration, Registry

__all__ = ["CudaRegion", "RegionSlice", "Regions", "Registration", "Registry", "SystemRegion"]
