//! Values of vectors: numbers, arrays of some dtype, bytes, and comparison of what is with what is
//! expected.

use routecap::{AnySlice, BF16, DType, F16, IdWeight, WeightElement};
use serde_json::{Map, Value};

/// In every element that a call may write.
pub const UNTOUCHED: i64 = 77;

/// An object of a vector: arguments, or expectations.
#[derive(Clone, Copy)]
pub struct Said<'a>(pub &'a Map<String, Value>);

impl<'a> Said<'a> {
    pub fn of(value: &'a Value) -> Said<'a> {
        Said(value.as_object().unwrap_or_else(|| panic!("no object: {value}")))
    }

    /// What is said under a key; null is nothing.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub fn object(&self, key: &str) -> Option<Said<'a>> {
        self.get(key).map(Said::of)
    }

    pub fn list(&self, key: &str) -> &'a [Value] {
        self.get(key)
            .map_or(&[], |value| value.as_array().unwrap_or_else(|| panic!("no array: {value}")))
    }

    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key).map(|value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")))
    }

    /// A number, 0 if nothing is said.
    pub fn number<T: TryFrom<i128>>(&self, key: &str) -> T {
        self.number_or(key, 0)
    }

    pub fn number_or<T: TryFrom<i128>>(&self, key: &str, otherwise: i128) -> T {
        let number = self.get(key).map_or(otherwise, number);
        T::try_from(number).unwrap_or_else(|_| panic!("{key} is {number}"))
    }

    /// An array of numbers, or one number as an array.
    pub fn numbers<T: TryFrom<i128>>(&self, key: &str) -> Option<Vec<T>> {
        let cast = |value: &Value| {
            T::try_from(number(value)).unwrap_or_else(|_| panic!("{key} has {value}"))
        };
        self.get(key).map(|value| {
            value
                .as_array()
                .map_or_else(|| vec![cast(value)], |values| values.iter().map(cast).collect())
        })
    }

    pub fn bytes(&self, key: &str) -> Vec<u8> {
        let digits: String = match self.get(key) {
            Some(Value::Array(lines)) => {
                lines.iter().map(|line| line.as_str().expect("digits")).collect()
            }
            Some(Value::String(digits)) => digits.clone(),
            other => panic!("{key} is no bytes: {other:?}"),
        };
        (0..digits.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).expect("digits"))
            .collect()
    }
}

pub fn number(value: &Value) -> i128 {
    match value {
        Value::String(text) if text == "ALL" => routecap::ALL.into(),
        Value::String(text) if text == "LANDED" => routecap::LANDED.into(),
        Value::String(text) => text.parse().unwrap_or_else(|_| panic!("no number: {text}")),
        Value::Bool(bool) => (*bool).into(),
        _ => value
            .as_i64()
            .map(i128::from)
            .or_else(|| value.as_u64().map(i128::from))
            .unwrap_or_else(|| panic!("no number: {value}")),
    }
}

pub fn float(value: &Value) -> f64 {
    match value.as_str() {
        Some("nan") => f64::NAN,
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        _ => value.as_f64().unwrap_or_else(|| panic!("no number: {value}")),
    }
}

/// A weight as vectors have it: the bits of a half type.
pub trait Shown: WeightElement {
    const UNTOUCHED: Self;
    fn shown(self) -> Value;
}
impl Shown for f32 {
    const UNTOUCHED: Self = UNTOUCHED as f32;
    fn shown(self) -> Value {
        match self {
            nan if nan.is_nan() => "nan".into(),
            f32::INFINITY => "inf".into(),
            f32::NEG_INFINITY => "-inf".into(),
            number => number.into(),
        }
    }
}
fn half(bits: u16, infinity: u16) -> Value {
    if bits & 0x7fff > infinity { "nan".into() } else { bits.into() }
}
impl Shown for F16 {
    const UNTOUCHED: Self = F16(UNTOUCHED as u16);
    fn shown(self) -> Value {
        half(self.0, 0x7c00)
    }
}
impl Shown for BF16 {
    const UNTOUCHED: Self = BF16(UNTOUCHED as u16);
    fn shown(self) -> Value {
        half(self.0, 0x7f80)
    }
}

macro_rules! elements {
    ($($dtype:ident: $type:ty, $from:expr, $to:expr;)*) => {
        /// Elements of some dtype, in memory of exactly their size.
        #[derive(Debug)]
        pub enum Elements {
            $($dtype(Box<[$type]>),)*
        }

        impl Elements {
            pub fn of(dtype: DType, values: &[Value]) -> Elements {
                match dtype {
                    $(DType::$dtype => Elements::$dtype(values.iter().map($from).collect()),)*
                    other => panic!("{other:?}"),
                }
            }

            pub fn slice(&self) -> AnySlice<'_> {
                match self {
                    $(Elements::$dtype(elements) => AnySlice::from(&elements[..]),)*
                }
            }

            pub fn as_mut_ptr(&mut self) -> *mut std::ffi::c_void {
                match self {
                    $(Elements::$dtype(elements) => elements.as_mut_ptr().cast(),)*
                }
            }

            /// Writes values over those from the first on.
            pub fn set(&mut self, values: &[Value]) {
                match self {
                    $(Elements::$dtype(elements) => {
                        elements.iter_mut().zip(values.iter().map($from)).for_each(|(to, v)| *to = v);
                    })*
                }
            }

            pub fn numbers(&self) -> Vec<f64> {
                match self {
                    $(Elements::$dtype(elements) => elements.iter().map($to).collect(),)*
                }
            }
        }
    };
}

elements! {
    U8: u8, |v| number(v) as u8, |v| f64::from(*v);
    I16: i16, |v| number(v) as i16, |v| f64::from(*v);
    U16: u16, |v| number(v) as u16, |v| f64::from(*v);
    I32: i32, |v| number(v) as i32, |v| f64::from(*v);
    U32: u32, |v| number(v) as u32, |v| f64::from(*v);
    I64: i64, |v| number(v) as i64, |v| *v as f64;
    IdWeight: IdWeight, |v| IdWeight(number(v) as u32), |v| f64::from(v.0);
    F32: f32, |v| float(v) as f32, |v| f64::from(*v);
    F16: F16, |v| F16(number(v) as u16), |v| f64::from(v.0);
    BF16: BF16, |v| BF16(number(v) as u16), |v| f64::from(v.0);
}

impl Elements {
    /// `count` elements that nobody has written.
    pub fn untouched(dtype: DType, count: usize) -> Elements {
        Elements::of(dtype, &vec![Value::from(UNTOUCHED); count])
    }

    /// Compares them with an array of a vector, to a tolerance.
    pub fn expect(&self, key: &str, expected: &[Value], tolerance: f64) {
        let is = self.numbers();
        assert_eq!(is.len(), expected.len(), "length of {key}");
        for (i, (is, expected)) in is.iter().zip(expected).enumerate() {
            let expected = if tolerance > 0.0 { float(expected) } else { number(expected) as f64 };
            assert!((is - expected).abs() <= tolerance, "{key}[{i}] is {is}, expected {expected}");
        }
    }

    pub fn expect_untouched(&self, key: &str) {
        assert!(
            self.numbers().iter().all(|v| *v == UNTOUCHED as f64),
            "{key} was written by a call that failed"
        );
    }
}

/// An object of the fields of a struct.
macro_rules! object {
    ($from:expr; $($field:ident),* $(,)?) => {{
        let from = &$from;
        serde_json::Value::Object([$((stringify!($field).to_string(), serde_json::Value::from(from.$field))),*].into_iter().collect())
    }};
}
pub(crate) use object;

/// Compares what is expected of an object; fields that are not expected may be anything.
pub fn expect_fields(what: &str, is: &Value, expected: Said<'_>) {
    for (key, expected) in expected.0 {
        let is = is.get(key).unwrap_or_else(|| panic!("{what} has no field {key}"));
        expect_value(&format!("{what}.{key}"), is, expected);
    }
}

pub fn expect_value(what: &str, is: &Value, expected: &Value) {
    let same = match (is, expected) {
        (Value::Array(is), Value::Array(expected)) => {
            assert_eq!(is.len(), expected.len(), "length of {what}");
            for (i, (is, expected)) in is.iter().zip(expected).enumerate() {
                expect_value(&format!("{what}[{i}]"), is, expected);
            }
            return;
        }
        (Value::Object(_), Value::Object(expected)) => {
            return expect_fields(what, is, Said(expected));
        }
        (Value::Null, _) | (_, Value::Null) => is == expected,
        (Value::String(is), Value::String(expected)) => is == expected,
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-12
        }
        _ => number(is) == number(expected),
    };
    assert!(same, "{what} is {is}, expected {expected}");
}
