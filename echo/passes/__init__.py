"""The stages of `echo.pipeline`: each takes values and gives a new one."""
