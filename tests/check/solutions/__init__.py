"""Right solutions of the exercises of `attnref check`, in three styles."""
