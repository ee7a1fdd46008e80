"""What people look at: tables, progress, charts."""
