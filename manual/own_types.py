"""An extension of griffe, which reads docstrings for the site: of several names in one entry, each has its own type and
default value. Griffe gives them all those of the first one."""

import griffe


class OwnTypes(griffe.Extension):  # type: ignore[misc]
    """Corrects what was read of functions and classes."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:  # noqa: D102
        if obj.docstring is None or not (obj.is_function or obj.is_class):
            return
        for section in obj.docstring.parsed:
            if section.kind is not griffe.DocstringSectionKind.parameters:
                continue
            for entry in section.value:
                if entry.name in obj.parameters:
                    known = obj.parameters[entry.name]
                    entry.annotation = known.annotation
                    # What is named elsewhere, such as DEFAULTS.guarantee, says nothing here.
                    entry.value = None if isinstance(known.default, griffe.ExprAttribute) else known.default
