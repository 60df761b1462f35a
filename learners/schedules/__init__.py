"""Schedules own the loop: who collects and who learns when, with which weights."""
