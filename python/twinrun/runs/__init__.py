"""What can be compared: histories, files, folders and arrays, as steps, ranks and fields with a place for every byte.

    subject         a run, or what can stand for one: its steps, its fields, whether its metadata is as new as its data
    arrays          arrays of a program, on the CPU or a GPU, as the core reads them
    containers      dictionaries, lists, models and tables as named arrays
    entries         arrays of a program as the core captures and digests them
    order           elements in one logical order, whatever the storage
    parts           fields that other ranks cut in another way
    particles       fields whose rows have IDs
    provenance      what was noted of a run's build, machine and surroundings
    index           metadata of files and of histories that have none
    sketch          digests of arrays in memory, without files
    verify          whether a history is what was written

Nothing here knows how two runs are compared.
"""
