"""Packages that an optional part needs and a user has not installed."""

_OUR_PACKAGES = ("gatefuse", "gatefuse_kernels", "gatefuse_protos")


def missing_package(error: ModuleNotFoundError) -> str:
    """The package that a user has to install. Raises the error itself where a module of ours is missing."""
    name = error.name or ""
    if not name or name.partition(".")[0] in _OUR_PACKAGES:
        raise error
    return name
