"""Right solutions of the exercises of `attnref check`, in five styles."""
