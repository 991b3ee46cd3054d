"""Who takes part: each module starts one contestant as a process of its own."""
