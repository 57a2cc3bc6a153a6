"""What can be compared: histories, files, folders and arrays, as steps, ranks and fields.

    opening         a path, or arrays, as one side of a comparison
    subject         one side of a comparison: its places (step, rank), and the fields of each
    histories       captured histories as such
    files           files of other programs as such, one or a folder
    in_memory       arrays of a program as such
    fields          one field of a place: its layout, where its elements are, its metadata
    metadata        whether metadata is as new as its data
    arrays          arrays of a program, on the CPU or a GPU, as the core reads them
    containers      dictionaries, lists, models and tables as named arrays
    entries         arrays of a program as the core captures and digests them
    order           elements in one logical order, whatever the storage
    parts           fields that two runs divide over ranks differently
    particles       fields whose rows have IDs
    provenance      the conditions of a run: build, machine, environment
    index           metadata of files and of histories that have none
    sketch          digests of arrays in memory, without files
    verify          whether a history is what was written

No module here knows how two runs are compared.
"""
