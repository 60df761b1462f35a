"""mjlite: MuJoCo's own dynamics, compiled per model."""
