//! Enums of C's numbers: those that keep a number that this crate does not know, and the names of
//! the others for `Debug`.

/// An enum of constants of the header, with `of` to make one of a number and a method that gives
/// the number back. What only a later header has is `Other`.
macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident, $of:literal, $number:ident: $what:literal { $($(#[$doc:meta])* $variant:ident = $constant:ident;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// One that this crate does not know.
            Other(i32),
        }

        impl $name {
            #[doc = $of]
            pub fn of($number: i32) -> $name {
                match $number {
                    $($crate::sys::$constant => $name::$variant,)*
                    other => $name::Other(other),
                }
            }

            #[doc = $what]
            pub fn $number(self) -> i32 {
                match self {
                    $($name::$variant => $crate::sys::$constant,)*
                    $name::Other(other) => other,
                }
            }
        }
    };
}
pub(crate) use numbers;

/// A number of C's for `Debug`: the variant that has it, or the number itself.
macro_rules! named {
    ($number:expr, $name:ident: $($variant:ident),*) => {
        $(if i64::from($number) == $name::$variant as i64 { &$name::$variant as &dyn std::fmt::Debug } else)* { &$number }
    };
}
pub(crate) use named;
