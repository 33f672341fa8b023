"""What pages on use in a project show: each block is in a test, and names in
other code are where pages say."""
