"""What MXNet says: its graphs as echo's own, and seconds of its operators. Only this room and `echo.runtime` import it."""
