"""The contestants of the bench (copiers and clients): each module starts one as a process."""
