//! As much of an engine's side of CUDA as the tests need: the driver API by dlopen, memory, streams
//! and graphs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

use routecap::{AnySlice, Element, Slice, SliceMut, Stream};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
const RTLD_NOW: c_int = 2;

type Handle = *mut c_void;
const LEGACY: Handle = std::ptr::null_mut();

macro_rules! driver {
    ($($name:ident = $symbol:literal $version:literal ($($argument:ty),*);)*) => {
        struct Driver { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Driver {
            fn load() -> Driver {
                // SAFETY: the symbols have these types in every driver since the version that is
                // asked for.
                unsafe {
                    let library = dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW);
                    assert!(!library.is_null(), "there is no libcuda.so.1: these tests need a CUDA driver, a real one or the fake one");
                    let get = dlsym(library, c"cuGetProcAddress_v2".as_ptr());
                    assert!(!get.is_null(), "the driver is older than CUDA 12");
                    let get: unsafe extern "C" fn(*const c_char, *mut Handle, c_int, c_ulonglong, Handle) -> c_int = std::mem::transmute(get);
                    let find = |symbol: &CStr, version| {
                        let mut address = std::ptr::null_mut();
                        assert_eq!(get(symbol.as_ptr(), &mut address, version, 0, std::ptr::null_mut()), 0, "{symbol:?}");
                        address
                    };
                    Driver { $($name: std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> c_int>(find($symbol, $version)),)* }
                }
            }
        }
    };
}

driver! {
    init = c"cuInit" 2000 (c_uint);
    primary_context = c"cuDevicePrimaryCtxRetain" 7000 (*mut Handle, c_int);
    set_context = c"cuCtxSetCurrent" 4000 (Handle);
    allocate = c"cuMemAlloc" 3020 (*mut usize, usize);
    free = c"cuMemFree" 3020 (usize);
    write = c"cuMemcpyHtoDAsync" 3020 (usize, *const c_void, usize, Handle);
    read = c"cuMemcpyDtoHAsync" 3020 (*mut c_void, usize, usize, Handle);
    create_stream = c"cuStreamCreate" 2000 (*mut Handle, c_uint);
    destroy_stream = c"cuStreamDestroy" 4000 (Handle);
    synchronize = c"cuStreamSynchronize" 2000 (Handle);
    begin_capture = c"cuStreamBeginCapture" 10010 (Handle, c_int);
    end_capture = c"cuStreamEndCapture" 10000 (Handle, *mut Handle);
    instantiate = c"cuGraphInstantiateWithFlags" 11040 (*mut Handle, Handle, c_ulonglong);
    launch = c"cuGraphLaunch" 10000 (Handle, Handle);
    destroy_exec = c"cuGraphExecDestroy" 10000 (Handle);
    destroy_graph = c"cuGraphDestroy" 10000 (Handle);
}

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(Driver::load)
}

/// Calls the driver, which must not fail.
macro_rules! cu {
    ($name:ident($($argument:expr),*)) => {
        // SAFETY: arguments are what the function of that name takes; handles are alive while their
        // owners below are.
        assert_eq!(unsafe { (driver().$name)($($argument),*) }, 0, concat!("cu: ", stringify!($name)))
    };
}

/// Makes device 0's primary context this thread's.
fn use_device() {
    static CONTEXT: OnceLock<usize> = OnceLock::new();
    let context = *CONTEXT.get_or_init(|| {
        let mut context = std::ptr::null_mut();
        cu!(init(0));
        cu!(primary_context(&mut context, 0));
        context as usize
    });
    cu!(set_context(context as Handle));
}

/// Elements in memory of the device.
pub struct Array<T> {
    address: usize,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Array<T> {
    pub fn new(values: &[T]) -> Array<T> {
        use_device();
        let mut address = 0;
        cu!(allocate(&mut address, size_of_val(values).max(1)));
        let array = Array { address, len: values.len(), element: std::marker::PhantomData };
        array.write(values);
        array
    }

    /// Nothing on the device may use it meanwhile.
    pub fn write(&self, values: &[T]) {
        assert!(values.len() <= self.len);
        cu!(write(self.address, values.as_ptr().cast(), size_of_val(values), LEGACY));
        cu!(synchronize(LEGACY));
    }

    /// Of work that has run.
    pub fn read(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.len];
        cu!(read(values.as_mut_ptr().cast(), self.address, size_of_val(values.as_slice()), LEGACY));
        cu!(synchronize(LEGACY));
        values
    }

    pub fn address(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    pub fn slice(&self) -> Slice<'_, T> {
        // SAFETY: the memory is freed after every stream that uses it was synchronised.
        unsafe { Slice::device(self.address(), self.len) }
    }

    pub fn any(&self) -> AnySlice<'_> {
        self.slice().into()
    }

    /// The first elements alone.
    pub fn first(&self, len: usize) -> AnySlice<'_> {
        assert!(len <= self.len);
        // SAFETY: as above.
        unsafe { Slice::device(self.address().cast_const(), len) }.into()
    }

    pub fn slice_mut(&mut self) -> SliceMut<'_, T> {
        // SAFETY: as above.
        unsafe { SliceMut::device(self.address(), self.len) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // It waits for the device's work.
        cu!(free(self.address));
    }
}

/// An engine's stream.
pub struct OwnStream(Handle);

impl OwnStream {
    pub fn new() -> OwnStream {
        use_device();
        let mut stream = std::ptr::null_mut();
        const NON_BLOCKING: c_uint = 1;
        cu!(create_stream(&mut stream, NON_BLOCKING));
        OwnStream(stream)
    }

    pub fn get(&self) -> Stream {
        // SAFETY: tests drop what uses the stream before it.
        unsafe { Stream::from_raw(self.0) }
    }

    pub fn synchronize(&self) {
        cu!(synchronize(self.0));
    }

    /// Captures what `work` enqueues. A panic in it ends the capture too: otherwise what unwinding
    /// frees would be refused by the driver.
    pub fn capture(&self, work: impl FnOnce()) -> Graph {
        const THREAD_LOCAL: c_int = 1;
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        cu!(begin_capture(self.0, THREAD_LOCAL));
        let worked = catch_unwind(AssertUnwindSafe(work));
        cu!(end_capture(self.0, &mut graph));
        worked.unwrap_or_else(|panic| resume_unwind(panic));
        cu!(instantiate(&mut exec, graph, 0));
        cu!(destroy_graph(graph));
        Graph(exec)
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        cu!(synchronize(self.0));
        cu!(destroy_stream(self.0));
    }
}

/// A graph that can be launched.
pub struct Graph(Handle);

impl Graph {
    pub fn launch(&self, stream: &OwnStream) {
        cu!(launch(self.0, stream.0));
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        cu!(destroy_exec(self.0));
    }
}
