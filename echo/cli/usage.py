"""A command that shows its usage with each complaint about its words."""

from typing import Any, List

from typer.core import TyperCommand


class WithUsage(TyperCommand):
    """A command of typer's; where an option lacks its value, typer alone would not say of which command."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                vars(error).update(ctx=ctx, cmd=self)
            raise
