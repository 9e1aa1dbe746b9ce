"""Public names of a package that are loaded when they are first used.

A package lists its names once, as imports that type checkers read and Python never runs:

    if TYPE_CHECKING:
        from package.part import Name as Name
    else:
        __all__, __getattr__, __dir__ = export_lazily(__name__, __file__)
"""

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType


def export_lazily(
    package: str, file: str
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Offer the names that a package imports for type checkers alone.

    Args:
        package: Its `__name__`.
        file: Its `__file__`, in which the imports below `if TYPE_CHECKING:` are read.

    Returns:
        The package's `__all__`, without its subpackages; its `__getattr__`, which loads a name or a
        subpackage; its `__dir__`, which lists both.
    """
    module_of_name = {
        alias.name: statement.module
        for block in ast.parse(Path(file).read_text()).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }

    def load_name(name: str) -> object:
        module = module_of_name.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if module == package:
            return import_module(f"{package}.{name}")
        value: object = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(name for name, module in module_of_name.items() if module != package)
    return names, load_name, lambda: sorted(module_of_name)


def list_names(namespace: Mapping[str, object]) -> list[str]:
    """List the names that a package imports at once, for its `__all__`.

    For packages with functions named like their modules, which would hide lazy names.

    Args:
        namespace: Its `globals()`.

    Returns:
        The names without an underscore, modules left out.
    """
    return sorted(
        name
        for name, value in namespace.items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    )
