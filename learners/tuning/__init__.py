"""Self-tuning: measure this machine, propose settings, check them by short trainings, keep what learns sooner."""
