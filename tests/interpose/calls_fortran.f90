! Calls of MPI from Fortran, whose numbers and bytes check.py knows. usage: calls_fortran FOLDER
program calls_fortran
  implicit none
  include 'mpif.h'
  integer :: rank, ranks, next, before, i, error, file
  integer :: status(MPI_STATUS_SIZE), numbers(3)
  double precision :: a(10), b(10), all(64)
  character(4096) :: folder

  call get_command_argument(1, folder)
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  next = mod(rank + 1, ranks)
  before = mod(rank + ranks - 1, ranks)
  a = rank
  do i = 1, 5  ! Sendrecv 5: 400 bytes
    b = -1
    call MPI_Sendrecv(a, 10, MPI_DOUBLE_PRECISION, next, i, b, 10, MPI_DOUBLE_PRECISION, before, i, &
                      MPI_COMM_WORLD, status, error)
    if (any(b /= before)) error stop "Sendrecv"
  end do
  do i = 1, 2  ! Allreduce 2: 160 bytes
    call MPI_Allreduce(a, b, 10, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
    if (any(b /= ranks * (ranks - 1) / 2)) error stop "Allreduce"
  end do
  b(1) = 1
  call MPI_Allreduce(MPI_IN_PLACE, b, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)  ! Allreduce 3: 168 bytes
  if (b(1) /= ranks) error stop "Allreduce in place"
  numbers = rank
  call MPI_Bcast(numbers, 3, MPI_INTEGER, 0, MPI_COMM_WORLD, error)  ! Bcast: 12 bytes
  if (any(numbers /= 0)) error stop "Bcast"
  all = 0
  if (rank == 0) then  ! Gather: 8 bytes of all but the root, whose part is in place
    call MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
    if (all(ranks) /= ranks - 1) error stop "Gather"
  else
    call MPI_Gather(a, 1, MPI_DOUBLE_PRECISION, all, 1, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
  end if
  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_File_open(MPI_COMM_WORLD, trim(folder)//"/fortran.bin", ior(MPI_MODE_CREATE, MPI_MODE_WRONLY), MPI_INFO_NULL, &
                     file, error)  ! with the length of a name behind the arguments
  if (error /= MPI_SUCCESS) error stop "File_open"
  call MPI_File_write_at(file, int(rank, MPI_OFFSET_KIND) * 80, a, 10, MPI_DOUBLE_PRECISION, status, error)
  if (error /= MPI_SUCCESS) error stop "File_write_at"
  call MPI_File_close(file, error)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_Finalize(error)
end program
