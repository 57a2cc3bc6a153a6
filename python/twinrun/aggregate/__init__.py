"""Writing from many ranks into few files: a plan by topology (plan), and studies of how fast and how steady
it is (studies).
"""
