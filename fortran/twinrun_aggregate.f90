! Aggregated files of many ranks (docs/reference/aggregate.md): the library libtwinrun_aggregate, for Fortran 2018.
!
!     use mpi_f08
!     use twinrun_aggregate
!     type(twr_aggregate_t) :: aggregate
!     real(real64), target :: temperature(0:nx + 1, 0:ny + 1)   ! with a halo
!     call twr_aggregate_create(aggregate, MPI_COMM_WORLD, "files = node; offsets = whole")
!     call twr_aggregate_declare(aggregate, [twr_block(8, global_shape=[gx, gy], first=[x0, y0], shape=[nx, ny], &
!         local_shape=[nx + 2, ny + 2], local_first=[2, 2])])
!     call twr_aggregate_write(aggregate, "step-000500.bin", [twr_data(temperature)])
!     call twr_aggregate_free(aggregate)
!
! Numbers of items, offsets and lengths are integer(int64), or default integers. Every procedure takes stat and errmsg. Without
! stat an error ends the program.
module twinrun_aggregate
  use, intrinsic :: iso_c_binding, only: c_associated, c_char, c_f_pointer, c_int, c_int64_t, c_loc, c_null_char, c_null_ptr, &
      c_ptr, c_size_t
  use, intrinsic :: iso_fortran_env, only: error_unit, int64
  implicit none
  private
  public :: twr_aggregate_t, twr_variable_t, twr_block_t
  public :: twr_aggregate_create, twr_aggregate_free, twr_aggregate_file, twr_aggregate_declare, twr_aggregate_declare_records
  public :: twr_aggregate_write, twr_aggregate_write_begin, twr_aggregate_wait, twr_aggregate_test, twr_aggregate_read
  public :: twr_aggregate_report, twr_variable, twr_block, twr_data
  integer(c_int), parameter, public :: twr_records = 0, twr_blocks = 1, twr_variables = 2

  type twr_aggregate_t
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! twr_aggregate_variable of include/twinrun/aggregate.h: an array whose first byte goes to file_offset.
  type, bind(c) :: twr_variable_t
    integer(c_int64_t) :: item_bytes = 0, items = 0, file_offset = 0, file_stride = 0, memory_stride = 0
  end type

  ! A block of a global array in Fortran's order. first and local_first count from 1.
  integer, parameter :: most_dimensions = 32
  type twr_block_t
    private
    integer(int64) :: item_bytes = 0, file_offset = 0
    ! Of global_shape, first, shape, local_shape and local_first: how many numbers (-1: absent), and these, from 0 on.
    integer :: given(5) = -1
    integer(int64) :: lengths(most_dimensions, 5) = 0
  end type

  type, bind(c) :: c_block
    integer(c_int64_t) :: item_bytes
    integer(c_int) :: dimensions, order
    integer(c_int64_t) :: file_offset
    type(c_ptr) :: global_shape, start, shape, local_shape, local_start
  end type

  interface twr_variable
    module procedure variable_int, variable_int64
  end interface
  interface twr_block
    module procedure block_int, block_int64
  end interface
  interface twr_aggregate_declare
    module procedure declare_variables, declare_blocks
  end interface

  interface
    function c_error_message() bind(c, name="twr_error_message")
      import :: c_ptr
      type(c_ptr) :: c_error_message
    end function
    function c_strlen(text) bind(c, name="strlen")
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: c_strlen
    end function
    function c_settings_create(settings) bind(c, name="twr_aggregate_settings_create")
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: settings
      integer(c_int) :: c_settings_create
    end function
    function c_settings_set(settings, name, value) bind(c, name="twr_aggregate_settings_set")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: settings
      character(kind=c_char), intent(in) :: name(*), value(*)
      integer(c_int) :: c_settings_set
    end function
    subroutine c_settings_destroy(settings) bind(c, name="twr_aggregate_settings_destroy")
      import :: c_ptr
      type(c_ptr), value :: settings
    end subroutine
    function c_refuse(why) bind(c, name="twr_aggregate_refuse")
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: why(*)
      integer(c_int) :: c_refuse
    end function
    ! comm: an integer of the module mpi, or a type(MPI_Comm) of mpi_f08, which has one integer.
    function c_create(aggregate, comm, settings) bind(c, name="twr_aggregate_create_f")
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: aggregate
      type(*), intent(in) :: comm
      type(c_ptr), value :: settings
      integer(c_int) :: c_create
    end function
    subroutine c_free(aggregate) bind(c, name="twr_aggregate_free")
      import :: c_ptr
      type(c_ptr), value :: aggregate
    end subroutine
    function c_file(aggregate, file, files, rank, ranks, comm) bind(c, name="twr_aggregate_file")
      import :: c_int, c_ptr
      type(c_ptr), value :: aggregate
      integer(c_int), intent(out) :: file, files, rank, ranks
      type(c_ptr), value :: comm
      integer(c_int) :: c_file
    end function
    function c_declare(aggregate, variables, count) bind(c, name="twr_aggregate_declare")
      import :: c_int, c_ptr, twr_variable_t
      type(c_ptr), value :: aggregate
      type(twr_variable_t), intent(in) :: variables(*)
      integer(c_int), value :: count
      integer(c_int) :: c_declare
    end function
    function c_declare_records(aggregate, item_bytes, count, items, layout, offset) &
        bind(c, name="twr_aggregate_declare_records")
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: aggregate
      integer(c_int64_t), intent(in) :: item_bytes(*)
      integer(c_int), value :: count, layout
      integer(c_int64_t), value :: items, offset
      integer(c_int) :: c_declare_records
    end function
    function c_declare_blocks(aggregate, blocks, count) bind(c, name="twr_aggregate_declare_blocks")
      import :: c_block, c_int, c_ptr
      type(c_ptr), value :: aggregate
      type(c_block), intent(in) :: blocks(*)
      integer(c_int), value :: count
      integer(c_int) :: c_declare_blocks
    end function
    function c_write(aggregate, path, data) bind(c, name="twr_aggregate_write")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: aggregate
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), intent(in) :: data(*)
      integer(c_int) :: c_write
    end function
    function c_write_begin(aggregate, path, data) bind(c, name="twr_aggregate_write_begin")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: aggregate
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), intent(in) :: data(*)
      integer(c_int) :: c_write_begin
    end function
    function c_read(aggregate, path, data) bind(c, name="twr_aggregate_read")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: aggregate
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), intent(in) :: data(*)
      integer(c_int) :: c_read
    end function
    function c_wait(aggregate) bind(c, name="twr_aggregate_wait")
      import :: c_int, c_ptr
      type(c_ptr), value :: aggregate
      integer(c_int) :: c_wait
    end function
    function c_test(aggregate, done) bind(c, name="twr_aggregate_test")
      import :: c_int, c_ptr
      type(c_ptr), value :: aggregate
      integer(c_int), intent(out) :: done
      integer(c_int) :: c_test
    end function
    function c_report(aggregate) bind(c, name="twr_aggregate_report")
      import :: c_ptr
      type(c_ptr), value :: aggregate
      type(c_ptr) :: c_report
    end function
  end interface

contains

  ! ---- what is declared ----

  pure function variable_int64(item_bytes, items, file_offset, file_stride, memory_stride) result(variable)
    integer, intent(in) :: item_bytes
    integer(int64), intent(in) :: items, file_offset
    integer(int64), intent(in), optional :: file_stride, memory_stride
    type(twr_variable_t) :: variable
    variable = twr_variable_t(int(item_bytes, int64), items, file_offset)
    if (present(file_stride)) variable%file_stride = file_stride
    if (present(memory_stride)) variable%memory_stride = memory_stride
  end function

  pure function variable_int(item_bytes, items, file_offset, file_stride, memory_stride) result(variable)
    integer, intent(in) :: item_bytes, items, file_offset
    integer, intent(in), optional :: file_stride, memory_stride
    type(twr_variable_t) :: variable
    variable = twr_variable_t(int(item_bytes, int64), int(items, int64), int(file_offset, int64))
    if (present(file_stride)) variable%file_stride = int(file_stride, int64)
    if (present(memory_stride)) variable%memory_stride = int(memory_stride, int64)
  end function

  pure function block_int64(item_bytes, global_shape, first, shape, local_shape, local_first, file_offset) result(block)
    integer, intent(in) :: item_bytes
    integer(int64), intent(in) :: global_shape(:), first(:), shape(:)
    integer(int64), intent(in), optional :: local_shape(:), local_first(:), file_offset
    type(twr_block_t) :: block
    block%item_bytes = int(item_bytes, int64)
    call keep(block, 1, global_shape, 0)
    call keep(block, 2, first, 1)
    call keep(block, 3, shape, 0)
    if (present(local_shape)) call keep(block, 4, local_shape, 0)
    if (present(local_first)) call keep(block, 5, local_first, 1)
    if (present(file_offset)) block%file_offset = file_offset
  end function

  pure function block_int(item_bytes, global_shape, first, shape, local_shape, local_first, file_offset) result(block)
    integer, intent(in) :: item_bytes, global_shape(:), first(:), shape(:)
    integer, intent(in), optional :: local_shape(:), local_first(:)
    integer(int64), intent(in), optional :: file_offset
    type(twr_block_t) :: block
    block%item_bytes = int(item_bytes, int64)
    call keep(block, 1, int(global_shape, int64), 0)
    call keep(block, 2, int(first, int64), 1)
    call keep(block, 3, int(shape, int64), 0)
    if (present(local_shape)) call keep(block, 4, int(local_shape, int64), 0)
    if (present(local_first)) call keep(block, 5, int(local_first, int64), 1)
    if (present(file_offset)) block%file_offset = file_offset
  end function

  pure subroutine keep(block, which, numbers, origin)
    type(twr_block_t), intent(inout) :: block
    integer, intent(in) :: which, origin
    integer(int64), intent(in) :: numbers(:)
    integer :: count
    block%given(which) = size(numbers)
    count = min(size(numbers), most_dimensions)
    block%lengths(:count, which) = numbers(:count) - origin
  end subroutine

  ! The address of an array of any type and rank, for a write or a read. The array has the attribute target. One that is not
  ! contiguous has no address here, and the call with it fails: write a copy, or declare a block or a stride.
  function twr_data(array) result(address)
    type(*), dimension(..), intent(in), target :: array
    type(c_ptr) :: address
    address = c_null_ptr
    if (is_contiguous(array)) address = c_loc(array)
  end function

  ! ---- an aggregate ----

  ! [collective] comm: of the module mpi or of mpi_f08. settings: "name = value", separated by semicolons.
  subroutine twr_aggregate_create(aggregate, comm, settings, stat, errmsg)
    type(twr_aggregate_t), intent(out) :: aggregate
    type(*), intent(in) :: comm
    character(*), intent(in), optional :: settings
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    type(c_ptr) :: made
    integer(c_int) :: status, refused
    character(:), allocatable :: why
    status = c_settings_create(made)
    if (status == 0 .and. present(settings)) status = set_all(made, settings)
    ! The others are in the call: it fails on all ranks.
    if (status /= 0) then
      why = error_message()
      refused = c_refuse(why // c_null_char)
    end if
    status = c_create(aggregate%handle, comm, made)
    call c_settings_destroy(made)
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! [collective] A second call does nothing.
  subroutine twr_aggregate_free(aggregate)
    type(twr_aggregate_t), intent(inout) :: aggregate
    if (c_associated(aggregate%handle)) call c_free(aggregate%handle)
    aggregate%handle = c_null_ptr
  end subroutine

  ! This rank's file of how many, and its number among the ranks of that file. They count from 0, as ranks do.
  subroutine twr_aggregate_file(aggregate, file, files, rank, ranks, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    integer, intent(out) :: file, files, rank, ranks
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status, of(4)
    of = 0
    status = c_file(aggregate%handle, of(1), of(2), of(3), of(4), c_null_ptr)
    file = int(of(1))
    files = int(of(2))
    rank = int(of(3))
    ranks = int(of(4))
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! [collective]
  subroutine declare_variables(aggregate, variables, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    type(twr_variable_t), intent(in) :: variables(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_declare(aggregate%handle, variables, int(size(variables), c_int))
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! [collective] layout: twr_records, twr_blocks or twr_variables.
  subroutine twr_aggregate_declare_records(aggregate, item_bytes, items, layout, file_offset, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    integer, intent(in) :: item_bytes(:)
    integer(int64), intent(in) :: items
    integer(c_int), intent(in) :: layout
    integer(int64), intent(in), optional :: file_offset
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(int64) :: offset
    integer(c_int) :: status
    offset = 0
    if (present(file_offset)) offset = file_offset
    status = c_declare_records(aggregate%handle, int(item_bytes, c_int64_t), int(size(item_bytes), c_int), items, layout, offset)
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! [collective]
  subroutine declare_blocks(aggregate, blocks, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    type(twr_block_t), intent(in) :: blocks(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int), parameter :: order_fortran = 1
    type(c_block) :: given(size(blocks))
    integer(c_int64_t), target :: lengths(most_dimensions, 5, size(blocks))
    type(c_ptr) :: at(5)
    integer(c_int) :: status, refused
    integer :: i, k, n
    do i = 1, size(blocks)
      n = blocks(i)%given(3)
      if (n > most_dimensions .or. any(blocks(i)%given(:2) /= n) .or. &
          any(blocks(i)%given(4:) /= n .and. blocks(i)%given(4:) /= -1)) then
        refused = c_refuse("a block's shapes and places have one number a dimension, and at most 32" // c_null_char)
        n = 0
      end if
      lengths(:, :, i) = blocks(i)%lengths
      do k = 1, 5
        at(k) = c_null_ptr
        if (blocks(i)%given(k) >= 0) at(k) = c_loc(lengths(1, k, i))
      end do
      given(i) = c_block(blocks(i)%item_bytes, int(n, c_int), order_fortran, blocks(i)%file_offset, at(1), at(2), at(3), at(4), &
          at(5))
    end do
    status = c_declare_blocks(aggregate%handle, given, int(size(blocks), c_int))
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! ---- writes and reads ----

  ! [collective] data: twr_data of each declared array, in their order.
  subroutine twr_aggregate_write(aggregate, path, data, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    character(*), intent(in) :: path
    type(c_ptr), intent(in) :: data(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_write(aggregate%handle, trim(path) // c_null_char, data)
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! [collective] The arrays may change when it returns. twr_aggregate_wait for the file.
  subroutine twr_aggregate_write_begin(aggregate, path, data, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    character(*), intent(in) :: path
    type(c_ptr), intent(in) :: data(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_write_begin(aggregate%handle, trim(path) // c_null_char, data)
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! [collective]
  subroutine twr_aggregate_wait(aggregate, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_wait(aggregate%handle)
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! done: no write of this rank is under way. Does not wait.
  subroutine twr_aggregate_test(aggregate, done, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    logical, intent(out) :: done
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status, flag
    flag = 0
    status = c_test(aggregate%handle, flag)
    done = flag /= 0
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! [collective] As twr_aggregate_write; the arrays get the file's bytes.
  subroutine twr_aggregate_read(aggregate, path, data, stat, errmsg)
    type(twr_aggregate_t), intent(in) :: aggregate
    character(*), intent(in) :: path
    type(c_ptr), intent(in) :: data(:)
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = c_read(aggregate%handle, trim(path) // c_null_char, data)
    if (status /= 0 .and. present(errmsg)) errmsg = error_message()
    call finish(status, stat)
  end subroutine

  ! JSON, as docs/reference/aggregate.md has it.
  function twr_aggregate_report(aggregate) result(text)
    type(twr_aggregate_t), intent(in) :: aggregate
    character(:), allocatable :: text
    text = text_at(c_report(aggregate%handle))
  end function

  ! ---- within the module ----

  function set_all(made, settings) result(status)
    type(c_ptr), intent(in) :: made
    character(*), intent(in) :: settings
    integer(c_int) :: status
    integer :: at, next, equals
    character(:), allocatable :: one
    status = 0
    at = 1
    do while (at <= len(settings) .and. status == 0)
      next = index(settings(at:), ";")
      if (next == 0) next = len(settings) - at + 2
      one = trim(adjustl(settings(at:at + next - 2)))
      at = at + next
      if (len(one) == 0) cycle
      equals = index(one, "=")
      if (equals == 0) then
        ! The library says that there is no such setting.
        status = c_settings_set(made, one // c_null_char, "" // c_null_char)
      else
        status = c_settings_set(made, trim(one(:equals - 1)) // c_null_char, trim(adjustl(one(equals + 1:))) // c_null_char)
      end if
    end do
  end function

  ! A copy of a text of C's.
  function text_at(address) result(text)
    type(c_ptr), intent(in) :: address
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    if (.not. c_associated(address)) then
      text = ""
      return
    end if
    call c_f_pointer(address, letters, [c_strlen(address)])
    allocate(character(size(letters)) :: text)
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function

  function error_message() result(text)
    character(:), allocatable :: text
    text = text_at(c_error_message())
  end function

  subroutine finish(status, stat)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: stat
    if (present(stat)) then
      stat = int(status)
    else if (status /= 0) then
      write (error_unit, "(a)") "twinrun: " // error_message()
      error stop 1
    end if
  end subroutine

end module
