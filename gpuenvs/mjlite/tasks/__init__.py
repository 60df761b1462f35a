"""Gymnasium's MuJoCo tasks (version 5), one file each, written with the same functions as a user's own task."""
