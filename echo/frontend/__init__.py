"""Between MXNet and echo's own graphs; with `echo.runtime`, the only room that imports mxnet."""
